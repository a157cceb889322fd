"""The parts of a manifest, each as JSON and back: its writer and its reader in one file."""
