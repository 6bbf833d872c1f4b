"""Complete uses of dblake, each with a test that runs it: read them, copy them, change them."""
