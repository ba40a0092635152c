// The `hbmprof` command.
namespace hbmprof::tool {
int RunCommandLine(int argc, char** argv);
}  // namespace hbmprof::tool

int main(int argc, char** argv) { return hbmprof::tool::RunCommandLine(argc, argv); }
