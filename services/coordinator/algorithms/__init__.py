"""Select-measure-generate loops against an Oracle. Not built yet."""
