"""Identities and keys: certificates, signatures, TLS, the keys of studies, cards, and the home of a party's keys."""
