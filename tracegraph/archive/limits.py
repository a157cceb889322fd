"""What is the most that a file may hold: readers refuse more before they allocate anything, and
writers refuse to write it.

Read as `limits.NAME`, so that both see one number. `docs/format.md` lists them.
"""

#: The deepest nesting of lists and objects in a manifest.
DEEPEST = 200
#: The bytes of a manifest, and the lists, objects and entries of them: what is read takes some
#: hundred bytes of memory for each.
MANIFEST_BYTES = 2**26
MOST_VALUES = 2**22
#: The rows of a table of objects, functions or Variables: each takes some thousand bytes of memory.
MOST_ROWS = 2**16
#: The letters of the name of something.
LONGEST_NAME = 1000
#: Digits of an integer.
MOST_DIGITS = 4000
#: The fields of a namedtuple or dataclass, and the classes of them in one file: each is made by
#: Python's own means, which compile code.
MOST_FIELDS, MOST_RECORDS = 500, 250
#: The operands of a check.
MOST_OPERANDS = 2**16
#: The bytes of graphs: each takes some dozens of memory.
TEXT_BYTES = 2**28
