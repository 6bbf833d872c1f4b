"""Lakes that released versions wrote, and the tests that every later version reads them."""
