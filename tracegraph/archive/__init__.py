"""Files of graphs and tensors: a directory whose manifest is replaced atomically.

- `tensors`: named arrays in safetensors files, read on demand;
- `manifest`: untrusted JSON, and errors that name places in it;
- `directory`: files named by their content, and the single replacement that commits them.

Nothing here knows Modules, Variables or functions: those belong to higher floors, `saved_model`.
"""
