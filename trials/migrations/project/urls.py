"""No pages: the trial runs migrations and writes rows only."""

urlpatterns: list[object] = []
