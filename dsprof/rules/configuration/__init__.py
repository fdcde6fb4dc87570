"""Rules of DeepSpeed's configuration."""
