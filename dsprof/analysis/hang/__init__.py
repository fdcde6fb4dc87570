"""Why a run is stuck or crashed: who waits where, for whom, and what became of whom."""
