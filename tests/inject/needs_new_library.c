int versioned_new(void);
int needs_new(void);
int needs_new(void) { return versioned_new(); }
