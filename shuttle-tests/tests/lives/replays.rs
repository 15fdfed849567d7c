//! Schedules that failed once, so that they never do again. `shuttle::replay(lives::NAME, "SCHEDULE")` runs one; a schedule is of use as
//! long as the steps of the life that it was printed for are the same.
