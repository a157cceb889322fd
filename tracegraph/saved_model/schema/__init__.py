"""The parts of a manifest as JSON, each with its writer and its reader in one file."""
