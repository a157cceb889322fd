"""The limits on what a file may hold: readers refuse more before they allocate anything, and
writers refuse to write it.

Refer to them as `limits.NAME`, so that both see one number. `docs/format.md` lists them.
"""

#: The deepest nesting of lists and objects in a manifest.
DEEPEST = 200
#: The bytes of a manifest, and its lists, objects and entries: reading takes some hundred bytes of
#: memory for each.
MANIFEST_BYTES = 2**26
MOST_VALUES = 2**22
#: The rows of a table of objects, functions or Variables: each takes some thousand bytes of memory.
MOST_ROWS = 2**16
#: The characters in a name.
LONGEST_NAME = 1000
#: Digits of an integer.
MOST_DIGITS = 4000
#: The fields of a namedtuple or dataclass, and the number of such classes in one file: Python
#: compiles code to create each.
MOST_FIELDS, MOST_RECORDS = 500, 250
#: The operands of a check.
MOST_OPERANDS = 2**16
#: The bytes of graphs: each takes some dozens of bytes of memory.
TEXT_BYTES = 2**28
