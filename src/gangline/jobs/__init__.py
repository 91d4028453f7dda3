"""What a job is: definitions, records, leases, outcomes and the rules between them. No I/O, no clock reads."""
