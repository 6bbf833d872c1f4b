"""Keep a source's tables small: compact files, delete rows past their retention, vacuum files no reader can reach."""
