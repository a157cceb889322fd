"""Programs and values of several devices and processes: layouts, and checks that all agree."""
