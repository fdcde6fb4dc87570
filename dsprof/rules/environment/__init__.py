"""Rules of variables, hosts and limits."""
