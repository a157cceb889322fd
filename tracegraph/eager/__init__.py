"""The top level: nodes stay pending until a value is read; buffers and the slots of Variables."""
