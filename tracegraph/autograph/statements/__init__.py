"""Control flow statements on values of a graph: branches, loops, and the state that they carry."""
