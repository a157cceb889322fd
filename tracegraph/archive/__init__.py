"""Files of graphs and tensors: a directory whose manifest is replaced atomically.

- `tensors`: named arrays in safetensors files, read when they are asked for;
- `manifest`: JSON that is not trusted, and the errors that name its places;
- `directory`: files named by their content, and the one replacement that makes them count.

Nothing here knows Modules, Variables or functions: those stand above, in `saved_model`.
"""
