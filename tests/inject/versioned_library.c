int versioned_old(void) { return 1; }
int versioned_new(void) { return 2; }
