"""Landing → events: which dumped rows stand beside the log, and where. Frames in, frames out; no table is touched."""
