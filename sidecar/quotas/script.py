"""What Redis runs for a pod: who is there, and of each lease what it gives, takes back and holds back (DESIGN §9)."""

from __future__ import annotations

from typing import Final

from sidecar.quotas.shared import LEASE_NS

__all__ = ["GRACE_MS", "PER_LEASE", "POD_TTL_MS", "SCRIPT"]

POD_TTL_MS: Final = LEASE_NS // 1_000_000  # a pod that says nothing for so long has no slots any more: others have them
GRACE_MS: Final = 2_000  # within which every pod that is there has told what it holds
PER_LEASE: Final = 7  # arguments
_AGES_MS: Final = 100 * 366 * 86_400_000  # longer than that nobody waits, and Redis takes no longer time to live
_STRANGE_MS: Final = 2 * 86_400_000  # between the time that goes on evenly and Redis's own

# KEYS: clock, pods, then one a lease. ARGV: pod, its time to live (ms; 0: it leaves), how long one that is not heard of
# may go on alone (ms), then seven a lease: kind (t or c), capacity, units a ms, wanted, owed (of slots: in use),
# returned, shared (of slots: had). Answers: pods, how many of them are not heard of, then a lease (granted, ms until it
# is full).
# A pod that is not heard of and did not take its leave may go on with its part of every limit: until it must have
# stopped, that part is held back. Buckets fill by a time of their own, which stays behind by that part of each step
# (held); of slots the others find as many fewer.
# A lease's missing key is a bucket that has been filling since the server was born: what a Redis that lost its memory
# had given out counts as spent, while a tenant that is new to an old one has its whole burst. What pods spent by fair
# share while they could not ask empties a bucket, and no more: each tells its part of what the bucket gained meanwhile.
# What they spent in advance is paid back whole: each may owe a bucket, so it sinks by as many as there are pods.
# The clock is Redis's own, as far as it goes on evenly: time that goes back stands still, and a leap forward is a new
# birth, because keys that a leap has let run out are lost memory too. So is a time in which nobody asked.
# A server that was just born knows of no slots: until every pod has told its own, each keeps what it had.
# A key that holds something else than a lease is told by granted -1 and left alone; the others of the call go on. What
# else is found at clock or pods goes: either is every pod's, and to be without it is a new birth. So does a clock that
# nobody here can have written, or that is further from Redis's own than any it is believed to have set.
SCRIPT: Final = (
    """
local t = redis.call('TIME')
local wall = t[1] * 1000 + math.floor(t[2] / 1000)
local ttl, alone = TTL, tonumber(ARGV[3])
local reborn = false
for i, kind in ipairs({'hash', 'zset'}) do
  local found = redis.call('TYPE', KEYS[i]).ok
  if found ~= 'none' and found ~= kind then
    redis.call('DEL', KEYS[i])
    reborn = true
  end
end
local clock = redis.call('HMGET', KEYS[1], 'born', 'wall', 'now', 'held', 'began')
for i = 1, 5 do
  clock[i] = string.match(clock[i] or '', '^%d+%.?%d*$') and tonumber(clock[i])
end
local held, began = clock[4] or 0, clock[5] or clock[1]
local born, now, step = wall, wall, 0
if clock[1] and clock[2] and clock[3] and clock[1] <= clock[3] and held <= clock[3] and began <= clock[3] - held
    and math.abs(clock[3] - wall) < STRANGE then
  born, now = clock[1], clock[3]
  step = math.max(0, math.min(wall - clock[2], ttl))
  now = now + step
  reborn = reborn or wall - clock[2] > ttl
else
  held, began = 0, wall
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - ttl - alone)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '(' .. string.format('%.0f', now), '+inf')
local pods, lost = redis.call('ZCARD', KEYS[2]), redis.call('ZCOUNT', KEYS[2], '-inf', now - ttl)
held = held + (pods > 0 and step * lost / pods or 0)
local flow = math.floor(now - held)
if reborn then
  born, began = now, flow
end
redis.call('HSET', KEYS[1], 'born', string.format('%.0f', born), 'wall', string.format('%.0f', wall), 'now',
           string.format('%.0f', now), 'held', string.format('%.3f', held), 'began', string.format('%.0f', began))
redis.call('PEXPIRE', KEYS[1], 86400000)
if ARGV[2] == '0' then
  redis.call('ZREM', KEYS[2], ARGV[1])
else
  redis.call('ZADD', KEYS[2], now, ARGV[1])
end
redis.call('PEXPIRE', KEYS[2], ttl * 2 + alone)
pods, lost = redis.call('ZCARD', KEYS[2]), redis.call('ZCOUNT', KEYS[2], '-inf', now - ttl)
local filling = lost < pods and (pods - lost) / pods or 1
local answer = {pods, lost}
for i = 3, #KEYS do
  local a = 4 + (i - 3) * PER_LEASE
  local capacity, rate = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
  local want, owed, back = tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5])
  local shared = tonumber(ARGV[a + 6])
  local granted, wait = 0, 0
  if ARGV[a] == 'c' then
    local others = lost > 0 and lost * math.floor(capacity / pods) or 0
    local all = redis.pcall('HGETALL', KEYS[i])
    local sound = not all.err
    for j = 1, #all, 2 do
      local n, till = string.match(all[j + 1], '^(%d+):(%d+)$')
      if not n then
        sound = false
      elseif tonumber(till) <= now then
        redis.call('HDEL', KEYS[i], all[j])
      elseif all[j] ~= ARGV[1] then
        others = others + tonumber(n)
      end
    end
    granted = math.max(0, math.min(want, capacity - others))
    if now - born < GRACE then
      granted = math.min(granted, math.max(owed, shared))
    end
    local kept = math.max(granted, owed)
    if not sound then
      granted = -1
    elseif kept > 0 then
      redis.call('HSET', KEYS[i], ARGV[1], kept .. ':' .. string.format('%.0f', now + ttl))
      redis.call('PEXPIRE', KEYS[i], ttl * 2)
    else
      redis.call('HDEL', KEYS[i], ARGV[1])
    end
  else
    local level, since = 0, began
    local kept = redis.pcall('GET', KEYS[i])
    if kept then
      local l, s = nil, nil
      if type(kept) == 'string' then
        l, s = string.match(kept, '^(-?%d+%.?%d*):(%d+)$')
      end
      level, since = tonumber(l or ''), tonumber(s or '')
    end
    if not level then
      granted = -1
    else
      level = math.min(capacity, level + math.max(0, flow - since) * rate + back)
      if shared > 0 then
        level = math.max(math.min(level, 0), level - shared)
      end
      level = math.max(-capacity * pods, level - owed)
      granted = math.max(0, math.min(want, math.floor(level)))
      level = level - granted
      if rate > 0 then
        wait = math.min(AGES, math.ceil((capacity - level) / (rate * filling)))
      end
      redis.call('SET', KEYS[i], string.format('%.6f:%.0f', level, flow))
      if rate > 0 then
        redis.call('PEXPIRE', KEYS[i], 2 * wait + 1000)
      end
    end
  end
  answer[#answer + 1] = granted
  answer[#answer + 1] = wait
end
return answer
""".replace("PER_LEASE", str(PER_LEASE))
    .replace("TTL", str(POD_TTL_MS))
    .replace("STRANGE", str(_STRANGE_MS))
    .replace("AGES", str(_AGES_MS))
    .replace("GRACE", str(GRACE_MS))
)
