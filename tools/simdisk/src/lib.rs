//! A simulated disk: sectors, unsynced writes, crashes and faults.
