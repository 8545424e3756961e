"""The data owner's side: count locally, secret-share, push to the three servers. It only connects outwards."""
