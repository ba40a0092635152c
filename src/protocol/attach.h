// Attaching to a process that was started without hbmprof: the two functions that libhbmprof_gpu.so exports for it,
// and what they return. The command `hbmprof attach` has a thread of the process load the library and call the first
// one; a program can do the same itself:
//
//   void* library = dlopen("/usr/lib/hbmprof/libhbmprof_gpu.so", RTLD_NOW | RTLD_LOCAL);
//   auto* attach = reinterpret_cast<int (*)(const char*)>(dlsym(library, "hbmprof_attach"));
//   const int problem = attach("HBMPROF_GPU_OUTPUT=/tmp/p.pb.gz\nHBMPROF_SOCKET_DIR=/run/user/1000/hbmprof\n");
//
// Both take no lock that they hold while they call other code, and may be called by several threads at the same time:
// one of them does the work, the others return kAttachBusy or kAttachedAlready. If they return another code than
// kAttached, they have not changed whether the process is recorded. Its options, its control channel and its handling
// of forks may be those of an attached process already.
#ifndef HBMPROF_SRC_PROTOCOL_ATTACH_H_
#define HBMPROF_SRC_PROTOCOL_ATTACH_H_

namespace hbmprof::internal {

// The codes are a part of the ABI: a code keeps its meaning.
enum AttachCode : int {
  kAttached = 0,  // also: detached
  kAttachedAlready = 1,
  kAttachPreloaded = 2,    // the library was loaded with the program, which `hbmprof run` has started
  kAttachBusy = 3,         // another thread attaches or detaches
  kAttachNoDriver = 4,     // the process has not loaded libcuda.so.1
  kAttachUnknownForm = 5,  // the entries of this driver have no form of driver_slot.h
  kAttachForeignSlot = 6,  // another tool has replaced such a pointer
  kAttachNoMemory = 7,     // the host has no memory for the profiler
  kAttachForkedChild = 8,  // a forked child of a process that was attached to
  kNotAttached = 9,        // hbmprof_detach: there is nothing to detach
  kAttachOptionsTooLong = 10,
  kAttachNoControl = 11,      // no control socket can be made in HBMPROF_SOCKET_DIR
  kAttachParentsMemory = 12,  // a child of vfork
};
inline constexpr int kAttachCodes = 13;

// The drivers whose functions are known to have a form of driver_slot.h, for messages.
#define HBMPROF_KNOWN_DRIVERS "470 to 615"

// A line for the user.
inline const char* AttachText(int code) {
  constexpr const char* kTexts[kAttachCodes] = {
      "attached",
      "hbmprof is attached already",
      "the program was started with hbmprof: it is recorded from its start, but not if HBMPROF=0 was set",
      "another thread attaches or detaches now; try again",
      "the process has not loaded libcuda.so.1 yet: attach after its first use of CUDA",
      "the functions of this libcuda have an unknown form (known: drivers " HBMPROF_KNOWN_DRIVERS
      "): use `hbmprof run`",
      "another tool has replaced functions of libcuda: end that tool first, or use `hbmprof run`",
      "the host has no memory for the profiler",
      "the process is a forked child of a process that hbmprof was attached to: it cannot be recorded",
      "hbmprof is not attached",
      "the options are too long",
      ("the process can make no control socket, so it would not answer (its standard error says why): name another "
       "folder with HBMPROF_SOCKET_DIR"),
      "the process is a child of vfork, which has its parent's memory until it starts a program: attach to the parent",
  };
  return code >= 0 && code < kAttachCodes ? kTexts[code] : "unknown code of hbmprof_attach";
}

// The most bytes of the options, with the final 0.
inline constexpr unsigned kMaxAttachOptionBytes = 16384;

// This option with this value says that the calling thread was borrowed: it may be inside a call of the driver. So no
// function of the driver is called on it.
inline constexpr char kAttachThread[] = "HBMPROF_ATTACH";
inline constexpr char kAttachBorrowed[] = "borrowed";

}  // namespace hbmprof::internal

extern "C" {
// Begins to record. `options`: lines NAME=VALUE, which replace all environment variables of hbmprof (`hbmprof run`
// sets HBMPROF_GPU_OUTPUT, HBMPROF_SOCKET_DIR and others); null: the environment's. The options of the first call that
// makes the profiler hold for the rest of the process's life; only HBMPROF_SOCKET_DIR is read again in each call until
// one succeeds. Needs 128 KiB of stack. The thread may have all signals blocked. It must hold no lock of the C library,
// of the dynamic linker and of malloc. Starts threads.
int hbmprof_attach(const char* options);
// Ends that: puts back the pointers that are still ours. What was recorded stays, and the control channel still
// answers. The library stays loaded. hbmprof_attach can be called again; it then begins without live records.
int hbmprof_detach();
// Returns AttachText(code).
const char* hbmprof_attach_text(int code);
}

#endif  // HBMPROF_SRC_PROTOCOL_ATTACH_H_
