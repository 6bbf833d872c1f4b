"""What both halves share: positions, names, errors, and the layout, files and locks of the lake's tables. No Spark.

From here nothing else of dblake is imported.
"""
