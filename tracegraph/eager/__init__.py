"""The top level: nodes are pending until somebody asks for a value; buffers and their slots."""
