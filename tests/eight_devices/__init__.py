"""Cases for a process that has 8 virtual devices, which a test of one device starts."""
