"""The data owner's side: count locally, secret-share, push to the servers. It only connects outwards."""
