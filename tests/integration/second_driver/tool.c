// A library of another tool, which stands before the driver in one function.
int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version) {
    *version = 4242;
    return 0;
}
