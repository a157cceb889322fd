"""Layers along sequences: recurrent ones, and attention."""
