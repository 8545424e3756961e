"""The data owner's side: count locally, secret-share, push. Not built yet."""
