// See live_dumps.h.
#include "src/tool/source/live_dumps.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <system_error>

#include "src/base/descriptor.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/util/memory_limit.h"
#include "src/tool/util/output.h"
#include "src/tool/util/progress.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

using Clock = std::chrono::steady_clock;
using internal::FileDescriptor;

// Makes the signals that end the series readable from a descriptor. The destructor restores their effect. Signals that
// came before have none.
class EndSignals {
 public:
  EndSignals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM}) {
      struct sigaction action;
      // A blocked signal could be read even if it is ignored, as SIGINT is in a shell script's background command.
      if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(&signals, signal);
    }
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
    fd_.Reset(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~EndSignals() {
    signalfd_siginfo info = {};
    while (read(fd_.get(), &info, sizeof(info)) > 0) continue;
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

  int fd() const { return fd_.get(); }

 private:
  sigset_t before_;
  FileDescriptor fd_;
};

class Series {
 public:
  Series(const std::string& command, const LiveProcess& process, const LiveDumps& dumps,
         const std::function<absl::StatusOr<bool>(const ProfileSet&)>& is_enough)
      : command_(command),
        process_(process),
        dumps_(dumps),
        is_enough_(is_enough),
        process_end_(OpenProcess(process.socket)),
        progress_(dumps.count, "dumps taken") {}

  // Returns the next dump; nullopt at the end of the series.
  absl::StatusOr<std::optional<ProfileSet::Named>> Next() {
    while (attempts_ < dumps_.count && !ended_) {
      if (attempts_ > 0 && !WaitForNext()) break;
      ++attempts_;
      absl::StatusOr<ProfileSet::Named> dump = Take();
      progress_.Advance(1);
      if (dump.ok()) {
        ++taken_;
        return *std::move(dump);
      }
      if (taken_ == 0) return dump.status();
      if (absl::IsNotFound(dump.status())) {
        ReportEnd();
        break;
      }
      Report(Cat("dump ", attempts_, " of ", dumps_.count, " failed: ", MessageOf(dump.status())));
    }
    return std::nullopt;
  }

 private:
  absl::StatusOr<ProfileSet::Named> Take() {
    ASSIGN_OR_RETURN(const std::string bytes, QueryProcess(process_.socket, "profile"));
    std::string name = process_.name;
    if (!dumps_.folder.empty()) {
      const std::string path = NewFileOf(process_, ".pb.gz", dumps_.folder);
      if (const absl::Status status = WriteOutput(path, bytes); status.ok()) {
        name = path;
      } else {
        Report(MessageOf(status));
      }
    }
    CountInput(bytes.size());
    ASSIGN_OR_RETURN(RawProfile profile, ParseProfile(bytes, name));
    if (taken_ == 0) {
      ASSIGN_OR_RETURN(const ProfileSet first, ProfileSet::Parse({{name, bytes}}));
      ASSIGN_OR_RETURN(ended_, is_enough_(first));
    }
    return ProfileSet::Named{std::move(name), std::move(profile)};
  }

  // Waits until the next dump is due. Returns false if the series ends before.
  bool WaitForNext() {
    next_ = std::max(next_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(dumps_.seconds)),
                     Clock::now());
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_ - Clock::now());
      pollfd ends[] = {{signals_.fd(), POLLIN, 0}, {process_end_.get(), POLLIN, 0}};
      const int ready = poll(ends, 2, static_cast<int>(std::max<int64_t>(left.count(), 0)));
      if (ready > 0 && ends[0].revents != 0) return false;
      if (ready > 0) {
        ReportEnd();
        return false;
      }
      if (ready == 0 && Clock::now() >= next_) return true;
    }
  }

  void ReportEnd() {
    Report(Cat(process_.name, " (", process_.pid, ") has ended, or does not answer; ", taken_, " of ", dumps_.count,
               " dumps were taken"));
  }
  void Report(const std::string& message) {
    const std::unique_lock<std::mutex> hold = progress_.Hide();
    PrintError(command_, message);
  }

  const std::string& command_;
  const LiveProcess& process_;
  const LiveDumps& dumps_;
  const std::function<absl::StatusOr<bool>(const ProfileSet&)>& is_enough_;
  const EndSignals signals_;  // before the thread of progress_, which must not get these signals
  const FileDescriptor process_end_;
  Progress progress_;
  Clock::time_point next_ = Clock::now();
  bool ended_ = false;  // the first dump is enough
  size_t attempts_ = 0;
  size_t taken_ = 0;
};

}  // namespace

absl::StatusOr<ProfileSet> TakeDumps(const std::string& command, const LiveProcess& process, const LiveDumps& dumps,
                                     const std::function<absl::StatusOr<bool>(const ProfileSet&)>& is_enough) {
  if (!dumps.folder.empty()) {
    std::error_code error;
    std::filesystem::create_directories(dumps.folder, error);
    if (!std::filesystem::is_directory(dumps.folder, error) || access(dumps.folder.c_str(), W_OK) != 0) {
      return PermissionDenied("--output '", dumps.folder, "': not a writable folder");
    }
  }
  Series series(command, process, dumps, is_enough);
  return ProfileSet::ReadEach([&] { return series.Next(); });
}

}  // namespace hbmprof::tool
