"""Who is who: certificates, signatures, TLS, keys of studies, cards, and the home of a party's keys."""
