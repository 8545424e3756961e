"""One file for each revision, named by its number. What has been released is never edited."""
