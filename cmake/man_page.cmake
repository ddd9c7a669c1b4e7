# SPDX-License-Identifier: Apache-2.0
# cmake -D COMMAND=… -D VERSION=… -D OUTPUT=… -P man_page.cmake
# Writes flashmask.1 from the help of the command and of its subcommands.
cmake_minimum_required(VERSION 3.22)

# The help of a subcommand, or without one of the command, as lines that are not filled.
function(help_of subcommand result)
  execute_process(COMMAND ${COMMAND} ${subcommand} --help OUTPUT_VARIABLE help COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\\" "\\e" help "${help}")
  string(REPLACE "-" "\\-" help "${help}")
  string(REGEX REPLACE "(^|\n)([.'])" "\\1\\\\&\\2" help "${help}")
  set(${result} ".nf\n${help}.fi\n" PARENT_SCOPE)
endfunction()

help_of("" general)
string(REGEX MATCH "^\\.nf\n([^\n]*)\n" ignored "${general}")
set(page ".TH FLASHMASK 1 \"\" \"flashmask ${VERSION}\"\n.SH NAME\nflashmask \\- ${CMAKE_MATCH_1}\n.SH DESCRIPTION\n${general}")
execute_process(COMMAND ${COMMAND} --help OUTPUT_VARIABLE help COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "Subcommands:\n(.*)" ignored "${help}")
string(REGEX MATCHALL "(^|\n)  [a-z]+ " subcommands "${CMAKE_MATCH_1}")
foreach(subcommand IN LISTS subcommands)
  string(STRIP "${subcommand}" subcommand)
  help_of(${subcommand} help)
  string(APPEND page ".SH FLASHMASK ${subcommand}\n${help}")
endforeach()
file(WRITE ${OUTPUT} "${page}")
