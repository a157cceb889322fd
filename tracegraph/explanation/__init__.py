"""Why a gradient is None."""
