"""Between a source and capture: columns that are not to be landed as they are."""
