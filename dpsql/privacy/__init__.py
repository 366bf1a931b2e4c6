"""What is promised and what was spent: costs, the ledger with its rules and its register, the secret."""
