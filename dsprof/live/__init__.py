"""The report as a local web application, with each step of each rank when it is asked for."""
