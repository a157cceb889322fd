"""Decides what a program keeps and what it recomputes, so that it fits a budget of bytes."""
