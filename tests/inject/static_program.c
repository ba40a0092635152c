// Does nothing. It is a statically linked program for the tests.
int main(void) { return 0; }
