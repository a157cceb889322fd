"""Saved directories made wrong on purpose, and the checksums right again behind the damage."""

import hashlib
import json
from pathlib import Path

MANIFEST = "tracegraph.json"


def sealed(content):
    """A manifest as bytes, with the checksum that belongs to it."""
    rows = "".join(f" {json.dumps(k)}: {json.dumps(v)},\n" for k, v in content.items())
    data = ("{\n" + rows).encode()
    return resealed(data)


def resealed(data):
    """Text of a manifest up to its last line, with that line."""
    return data + b' "checksum": "%s"\n}\n' % hashlib.sha256(data).hexdigest().encode()


def head(data):
    """Text of a manifest up to its last line."""
    return data[: -len(resealed(b""))]


def manifest(folder):
    content = json.loads((Path(folder) / MANIFEST).read_text())
    del content["checksum"]
    return content


def set_manifest(folder, content):
    (Path(folder) / MANIFEST).write_bytes(sealed(content))


def find(folder, stem):
    """The one file whose name begins with `stem`."""
    (path,) = Path(folder).glob(f"{stem}-*")
    return path


def replaced(content, old, new):
    """A JSON tree with one string in place of another, names of objects too."""
    if isinstance(content, dict):
        pairs = content.items()
        return {replaced(k, old, new): replaced(v, old, new) for k, v in pairs}
    if isinstance(content, list):
        return [replaced(item, old, new) for item in content]
    return new if content == old else content


def set_file(folder, path, data):
    """Gives a file other bytes, and all that the manifest says of it."""
    digest = hashlib.sha256(data).hexdigest()
    stem, suffix = path.name.rsplit("-", 1)[0], path.suffix
    new = path.with_name(f"{stem}-{digest[:12]}{suffix}")
    path.unlink()
    new.write_bytes(data)
    content = replaced(manifest(folder), path.name, new.name)
    content["files"][new.name] = {"bytes": len(data), "sha256": digest}
    set_manifest(folder, content)
    return new


def set_text(folder, change):
    """Changes the text of the graphs by a function of it."""
    path = find(folder, "graph")
    return set_file(folder, path, change(path.read_text()).encode())
