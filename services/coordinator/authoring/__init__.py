"""Studies in the making: what an author has typed so far, kept until it is proposed or forgotten."""
