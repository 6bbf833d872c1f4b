"""Keep the tables small: compact files, delete rows past their retention, remove unreachable files."""
