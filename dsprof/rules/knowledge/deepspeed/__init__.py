"""What is known of DeepSpeed's configuration: tables, and what reads them."""
