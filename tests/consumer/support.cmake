# Functions that the scripts in this folder share.

# run(COMMAND...): runs a command. If it fails, ends the script and prints the command's output.
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "failed (${result}): ${command}\n${output}")
  endif()
endfunction()

# run_consumer(PROGRAM WORK): runs a program of main.cc, main.c or cuda.cc, which must leave a profile in WORK.
function(run_consumer program work)
  cmake_path(GET program FILENAME name)
  set(profile ${work}/${name}.pb.gz)
  file(REMOVE ${profile})
  run(${program} ${profile})
  if(NOT EXISTS ${profile})
    message(FATAL_ERROR "${program} left no profile")
  endif()
endfunction()
