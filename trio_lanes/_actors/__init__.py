"""The actors, which are session lanes, global lanes and groups, and the record of a job."""
