"""The privacy guarantee with its price, the secret and the ledger of what was spent."""
